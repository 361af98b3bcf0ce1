from monarch.actor import Actor as Actor
from monarch.actor import Port as Port
from monarch.actor import endpoint as endpoint
