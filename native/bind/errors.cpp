// The table of errors: which Python exception each Status code becomes.
#include <string>

#include "bind.h"

namespace fastio {

void raise_for(const Status& status) {
  const char* text = status.message.c_str();
  switch (status.code) {
    case Code::ok:
      return;
    case Code::not_found:
      PyErr_SetString(PyExc_FileNotFoundError, text);
      break;
    case Code::io:
      PyErr_SetString(PyExc_OSError, text);
      break;
    case Code::memory:
      PyErr_SetString(PyExc_MemoryError, text);
      break;
    case Code::truncated:
    case Code::corrupt:
    case Code::unsupported:
    case Code::foreign:
      PyErr_SetString(PyExc_ValueError, text);
      break;
    case Code::unforeseen:
      PyErr_SetString(PyExc_RuntimeError, text);
      break;
    case Code::cancelled:  // by a signal, whose handler has set the exception already
      break;
  }
  throw nb::python_error();
}

void bind_status(nb::module_& m) {
  // The codes of failed rows that Python distinguishes.
  m.attr("TRUNCATED") = static_cast<int>(Code::truncated);
  m.attr("CORRUPT") = static_cast<int>(Code::corrupt);
  m.attr("FOREIGN") = static_cast<int>(Code::foreign);
}

void check_length(const char* name, std::size_t given, std::size_t wanted) {
  if (given == wanted) return;
  const std::string text = std::string(name) + " has " + std::to_string(given) +
                           " entries, expected " + std::to_string(wanted);
  throw nb::value_error(text.c_str());
}

}  // namespace fastio
