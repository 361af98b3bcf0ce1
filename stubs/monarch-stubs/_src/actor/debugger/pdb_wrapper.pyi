from monarch.actor import ActorAddr as ActorAddr
