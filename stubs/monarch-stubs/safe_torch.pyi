from monarch._older_paths.safe_torch import *
