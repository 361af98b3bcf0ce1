from monarch.actor import Context as Context
from monarch._mesh.process.context import ActorInstance as Instance
