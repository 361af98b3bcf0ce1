from monarch.tools.commands import create as create
from monarch.tools.commands import get_or_create as get_or_create
from monarch.tools.commands import info as info
from monarch.tools.commands import kill as kill
from monarch.job import load_current_job as load_current_job
from monarch.tools.commands import server_ready as server_ready
from monarch.tools.verbs.shell_verb import shell_on_job as shell_on_job
