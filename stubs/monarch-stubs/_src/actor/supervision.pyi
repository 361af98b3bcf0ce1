from monarch.actor import MeshFailure as MeshFailure
from monarch.actor import SupervisionError as SupervisionError
from monarch.actor import unhandled_fault_hook as unhandled_fault_hook
