from monarch._older_paths.worker._testing_function import *
