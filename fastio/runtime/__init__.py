"""The machine underneath: the native module, cores, memory, sizes, threads and files.

- `build`: imports the native module; `lifecycle`: threads and locks after a fork and at exit;
  `sockets`: where multiprocessing makes its sockets
- `cores`, `memory`: threads worth starting, ranks and machines of a job, memory in use
- `node`: memory that the ranks of a machine share; nobody owns it
- `threads`, `ahead`: the pool of threads, and jobs that run before their results are needed
- `files`, `sizes`, `texts`: atomic files, sizes as text, many strings in little memory
- `spilled`: long lists of numbers and bytes in temporary files
- `properties`, `signatures`: properties that are computed once, the parameters of functions
"""

from __future__ import annotations
