from monarch._older_paths.distributed_telemetry.engine import *
