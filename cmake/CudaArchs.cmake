# Decides the CUDA architectures; l2pf_cuda_options(TARGET) applies them.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(L2PF_SHIPPED_CUDA_ARCHS 90-real 100-real 103-real 120-real 121-real 90-virtual)  # Grace hosts and DGX Spark
else()
  set(L2PF_SHIPPED_CUDA_ARCHS 80-real 89-real 90-real 100-real 103-real 120-real 121-real 90-virtual)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/Gencode.cmake)

if(L2PF_CUDA_ARCHS STREQUAL "")
  # An older nvcc builds the part of our list that it knows; an explicit list is passed on as it is.
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known)
  set(archs "")
  foreach(arch IN LISTS L2PF_SHIPPED_CUDA_ARCHS)
    string(REGEX MATCH "^[0-9]+" number ${arch})
    if(known MATCHES "compute_${number}[^0-9]")
      list(APPEND archs ${arch})
    else()
      message(STATUS "dsv41_l2pf: this nvcc does not know ${arch}: left out")
    endif()
  endforeach()
else()
  set(archs ${L2PF_CUDA_ARCHS})
endif()
l2pf_gencode(L2PF_GENCODE "${archs}")

function(l2pf_cuda_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--threads=0;${L2PF_GENCODE}>)
endfunction()
message(STATUS "dsv41_l2pf: CUDA architectures: ${archs}")
