from monarch._older_paths.tensorboard import *
