// The native tests' main function. Each other file here tests the file of the same name in
// native/core.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
