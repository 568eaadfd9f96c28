#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the run where an invariant does not hold; libFuzzer then keeps the input.
#define L2PF_REQUIRE(condition)                                                   \
  do {                                                                            \
    if (condition) break;                                                         \
    std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
    std::abort();                                                                 \
  } while (false)
