from monarch.actor import Future as Future
from monarch.actor import returns_future as returns_future
