from monarch.config import Encoding as Encoding
from monarch.config import clear_runtime_config as clear_runtime_config
from monarch.config import configure as configure
from monarch.config import configured as configured
from monarch.config import get_global_config as get_global_config
from monarch.config import get_runtime_config as get_runtime_config
