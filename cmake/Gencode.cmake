# l2pf_gencode(OUT ARCHS): nvcc's -gencode flags for a list like "90-real;121a;90-virtual". CMake's own CUDA_ARCHITECTURES
# is not used: each CMake release knows only some spellings (3.25 refuses 121f), and nvcc is the one that decides.
function(l2pf_gencode out archs)
  set(flags "")
  foreach(arch IN LISTS archs)
    if(NOT arch MATCHES "^([0-9]+[af]?)(-real|-virtual)?$")
      message(FATAL_ERROR
        "dsv41_l2pf: L2PF_CUDA_ARCHS: expected entries like 90, 121a-real or 90-virtual, got \"${arch}\"")
    endif()
    set(number ${CMAKE_MATCH_1})
    if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
      list(APPEND flags "-gencode=arch=compute_${number},code=sm_${number}")
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-real")
      list(APPEND flags "-gencode=arch=compute_${number},code=compute_${number}")
    endif()
  endforeach()
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()
