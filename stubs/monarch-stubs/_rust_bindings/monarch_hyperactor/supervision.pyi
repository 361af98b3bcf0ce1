from monarch.actor import MeshFailure as MeshFailure
from monarch.actor import SupervisionError as SupervisionError
