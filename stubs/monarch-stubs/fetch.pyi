from monarch._older_paths.fetch import *
