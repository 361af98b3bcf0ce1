from monarch._older_paths._rust_bindings import *
