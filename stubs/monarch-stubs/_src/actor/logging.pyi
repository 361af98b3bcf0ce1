from monarch.actor import context as context
