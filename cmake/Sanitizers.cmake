# -DL2PF_SANITIZE=thread or address,undefined: the core, the backends and their GoogleTests under sanitizers. The first
# finding of a test fails it.
set(L2PF_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize takes them: thread, or address,undefined; empty: none")
if(L2PF_SANITIZE STREQUAL "")
  return()
endif()
if(L2PF_TORCH)
  message(FATAL_ERROR "dsv41_l2pf: L2PF_SANITIZE=${L2PF_SANITIZE} needs L2PF_TORCH=OFF: python does not load its runtime")
endif()
set(sanitizers -fsanitize=${L2PF_SANITIZE})
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CXX>:${sanitizers};-fno-sanitize-recover=all;-fno-omit-frame-pointer;-g>")
add_link_options(${sanitizers})
message(STATUS "dsv41_l2pf: sanitizers: ${L2PF_SANITIZE}")
