// The module fastio._native: registers the bindings of the other files.
#include "bind.h"

NB_MODULE(_native, m) {
  m.doc() = "fastio's native engine. Not a public interface: use the fastio package.";
  // Daemon threads that end with the interpreter never release their objects. That is no leak to
  // warn users of.
  nanobind::set_leak_warnings(false);
  fastio::bind_cpu(m);
  fastio::bind_status(m);
  fastio::bind_order(m);
  fastio::bind_chain(m);
  fastio::bind_image(m);
  fastio::bind_blocks(m);
  fastio::bind_table(m);
  fastio::bind_interleave(m);
  fastio::bind_parquet(m);
  fastio::bind_engine(m);
  fastio::bind_recoding(m);
}
