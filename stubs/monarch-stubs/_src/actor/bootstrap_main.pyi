from monarch._older_paths.bootstrap_main import invoke_main as invoke_main
from monarch._older_paths.bootstrap_main import main as main
