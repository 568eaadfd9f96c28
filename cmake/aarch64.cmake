# Toolchain file: cross-compiles for aarch64 hosts (DGX Spark, Grace) with Debian's g++-aarch64-linux-gnu.
# tools/wheels.sh makes L2PF_SBSA_TOOLKIT, a CUDA toolkit with the aarch64 runtime in targets/sbsa-linux.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY BOTH)
if(DEFINED L2PF_SBSA_TOOLKIT)
  set(CMAKE_CUDA_COMPILER ${L2PF_SBSA_TOOLKIT}/bin/nvcc)
  set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
  set(CMAKE_CUDA_FLAGS_INIT "--target-directory sbsa-linux")
  set(CUDAToolkit_ROOT ${L2PF_SBSA_TOOLKIT})
  # Else CMake may take the host's.
  set(CUDA_cudart_static_LIBRARY ${L2PF_SBSA_TOOLKIT}/targets/sbsa-linux/lib/libcudart_static.a CACHE FILEPATH "")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES L2PF_SBSA_TOOLKIT)
