# surefoot_module(NAME SOURCES ... PROTOS ... LIBS ...): a static library of one folder. Sources may be .cu where SUREFOOT_CUDA
# is TRUE; cmake/cuda.cmake has their flags.
function(surefoot_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PROTOS;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_LIBS} Threads::Threads)
  if(ARG_PROTOS)
    target_link_libraries(${name} PUBLIC protobuf::libprotobuf)
    # Generated files mirror the source tree under the build folder, so both resolve as "configs/job.pb.h". (CMake's own
    # protobuf_generate puts the current folder first in protoc's path, and the folder's name is lost.)
    file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    foreach(proto ${ARG_PROTOS})
      string(REGEX REPLACE "\\.proto$" "" stem ${CMAKE_BINARY_DIR}/${folder}/${proto})
      add_custom_command(
        OUTPUT ${stem}.pb.cc ${stem}.pb.h
        COMMAND protobuf::protoc --cpp_out=${CMAKE_BINARY_DIR} -I ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
        DEPENDS ${proto} VERBATIM)
      target_sources(${name} PRIVATE ${stem}.pb.cc)
    endforeach()
  endif()
endfunction()

# surefoot_test(NAME SOURCES ... LIBS ... LABELS unit [PROCS n] [TIMEOUT s] [ARGS ...]): a GoogleTest program, one ctest
# entry. Labels: unit, sim, contract, process, example, gpu. PROCS is the number of cores ctest reserves.
function(surefoot_test name)
  cmake_parse_arguments(ARG "NO_MAIN" "PROCS;TIMEOUT" "SOURCES;LIBS;LABELS;ARGS;ENV" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gmock)
  if(NOT ARG_NO_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_PROCS)
    set(ARG_PROCS 1)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ARG_PROCS}
                       ENVIRONMENT "SUREFOOT_SOURCE=${CMAKE_SOURCE_DIR};${ARG_ENV}")
endfunction()
