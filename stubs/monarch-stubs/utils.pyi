from monarch._older_paths.utils import *
