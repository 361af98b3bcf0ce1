from monarch.actor import ActorError as ActorError
from monarch.actor import concurrent_endpoint as concurrent_endpoint
from monarch.actor import context as context
from monarch.actor import endpoint as endpoint
from monarch.actor import span as span
