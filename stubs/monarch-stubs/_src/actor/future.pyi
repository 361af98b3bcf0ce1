from monarch.actor import Future as Future
