from monarch._older_paths.remote_class import *
