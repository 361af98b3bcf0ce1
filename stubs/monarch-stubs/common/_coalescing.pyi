from monarch._older_paths.common._coalescing import *
