from monarch._older_paths.bootstrap_main import *
