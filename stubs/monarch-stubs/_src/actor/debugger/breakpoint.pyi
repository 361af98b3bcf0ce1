from monarch.actor import context as context
from monarch.actor import debug_controller as debug_controller
