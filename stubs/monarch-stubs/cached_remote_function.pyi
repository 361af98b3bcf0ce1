from monarch._older_paths.cached_remote_function import *
