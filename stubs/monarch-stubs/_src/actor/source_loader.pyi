from monarch.actor import Actor as Actor
from monarch.actor import endpoint as endpoint
from monarch.actor import get_or_spawn_controller as get_or_spawn_controller
