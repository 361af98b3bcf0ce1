from monarch._older_paths._testing import *
