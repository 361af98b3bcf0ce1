from monarch.actor import ActorAddr as ActorAddr
from monarch.actor import ActorAddr as ActorId
from monarch.actor import ProcId as ProcId
from monarch.actor import Uid as Uid
