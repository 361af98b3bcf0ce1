from monarch.actor import ActorAddr as ActorAddr
from monarch._older_paths._private_names import TracingForwarder as TracingForwarder
from monarch.actor import get_meter as get_meter
from monarch.actor import span as span
from monarch.actor import traced as traced
