from monarch._older_paths.parallel.pipelining import *
