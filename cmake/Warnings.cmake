# Our own code compiles without a warning; other people's headers are SYSTEM. g++ counts a member that a designated
# initializer leaves at its default as missing: it is not.
function(l2pf_strict target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror,-Wno-missing-field-initializers;--Werror=all-warnings>)
endfunction()
