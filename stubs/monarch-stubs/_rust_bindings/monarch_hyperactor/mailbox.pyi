from monarch.actor import Port as OncePortRef
from monarch.actor import Port as PortRef
from monarch.actor import UndeliverableMessageEnvelope as UndeliverableMessageEnvelope
