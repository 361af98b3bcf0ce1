from monarch.job.spmd import SPMDJob as SPMDJob
from monarch.job.spmd import serve as serve
