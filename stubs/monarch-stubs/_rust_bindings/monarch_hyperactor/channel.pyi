from monarch.config.transport import BindSpec as BindSpec
from monarch.actor import ChannelTransport as ChannelTransport
