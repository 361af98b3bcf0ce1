from monarch._older_paths.experimental.thread_timeout import *
