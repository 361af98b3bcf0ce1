from monarch.actor import Actor as Actor
from monarch.tools.network import AddrType as AddrType
from monarch.spmd import SPMDActor as SPMDActor
from monarch.actor import current_rank as current_rank
from monarch.actor import current_size as current_size
from monarch.actor import endpoint as endpoint
from monarch.tools.network import get_ipaddr as get_ipaddr
