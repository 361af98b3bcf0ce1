from monarch.actor import Endpoint as Endpoint
from monarch.actor import EndpointProperty as EndpointProperty
from monarch import Extent as Extent
from monarch.actor import Future as Future
from monarch.actor import NotAnEndpoint as NotAnEndpoint
from monarch.actor import concurrent_endpoint as concurrent_endpoint
from monarch.actor import endpoint as endpoint
