# The little of torch that a stable-ABI library needs, from L2PF_PYTHON: headers, libtorch.so and libtorch_cpu.so.
# Not find_package(Torch): that brings its own architecture flags and libraries whose ABI is not stable.
# Defines TorchStable::torch and TorchStable_VERSION.
execute_process(
  COMMAND ${L2PF_PYTHON} -c "import importlib.util as u, os, re
spec = u.find_spec('torch')
root = spec.submodule_search_locations[0] if spec else ''
text = open(os.path.join(root, 'version.py')).read() if root else ''
found = re.search(r'__version__ = .(\\d+\\.\\d+\\.\\d+)', text)
print(root, found.group(1) if found else '', sep=';')"
  OUTPUT_VARIABLE torch_stable OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "dsv41_l2pf: could not ask L2PF_PYTHON=${L2PF_PYTHON} where its torch is")
endif()
list(GET torch_stable 0 TorchStable_ROOT)
list(GET torch_stable 1 TorchStable_VERSION)

# A cross build links stand-ins of the target's libraries: only their names and the functions we use matter.
set(L2PF_TORCH_LIB_DIR ${TorchStable_ROOT}/lib CACHE PATH "Where libtorch.so and libtorch_cpu.so are")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchStable
  REQUIRED_VARS TorchStable_ROOT
  VERSION_VAR TorchStable_VERSION
  REASON_FAILURE_MESSAGE "${L2PF_PYTHON} needs torch >= 2.10 (set -DL2PF_PYTHON, or -DL2PF_TORCH=OFF for the core only)")

if(TorchStable_FOUND AND NOT TARGET TorchStable::torch)
  add_library(TorchStable::torch INTERFACE IMPORTED)
  target_include_directories(TorchStable::torch SYSTEM INTERFACE ${TorchStable_ROOT}/include)
  # Both stay in DT_NEEDED, so that the library pulls in the symbols it uses whatever is loaded before it.
  target_link_options(TorchStable::torch INTERFACE -Wl,--no-as-needed)
  # libstdc++ comes first: libtorch_cpu.so exports stray copies of its functions, which are no part of torch's ABI.
  target_link_libraries(TorchStable::torch INTERFACE
    stdc++ ${L2PF_TORCH_LIB_DIR}/libtorch.so ${L2PF_TORCH_LIB_DIR}/libtorch_cpu.so)
endif()
