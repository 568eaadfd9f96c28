#include "runtime.h"

// Streams and events, and how an event carries a capture from one stream to another.
using fake_cuda::call;
using fake_cuda::release_call;
using fake_cuda::Runtime;
using fake_cuda::this_thread;
using fake_cuda::Ticket;

namespace {

cudaError_t create_event(Runtime& runtime, cudaEvent_t* event, bool is_timed) {
  *event = new CUevent_st{.is_timed = is_timed};
  ++runtime.live.events;
  return cudaSuccess;
}

// The event was recorded in a capture: its stream is in that capture from now on.
cudaError_t join_capture(cudaStream_t stream, cudaEvent_t event) {
  if (stream->capture && stream->capture != event->capture) return cudaErrorStreamCaptureMerge;
  if (!event->capture->is_valid) return cudaErrorStreamCaptureInvalidated;
  stream->capture = event->capture;
  if (stream != stream->capture->origin) stream->capture->forked.insert(stream);
  for (size_t i = 0; i < event->frontier.nodes.size(); ++i)
    stream->frontier.add(event->frontier.nodes[i], event->frontier.edges[i]);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return call("cudaStreamCreateWithFlags", [&](Runtime& runtime) {
    *stream = new CUstream_st{.device = this_thread().device};
    ++runtime.live.streams;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return release_call("cudaStreamDestroy", [&](Runtime& runtime) {
    if (!stream) return cudaErrorInvalidResourceHandle;
    runtime.drain(stream);
    --runtime.live.streams;
    delete stream;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&](Runtime& runtime) {
    stream = runtime.resolve(stream);
    if (stream->capture) {
      stream->capture->is_valid = false;
      return cudaErrorStreamCaptureUnsupported;
    }
    runtime.drain(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call("cudaEventCreate", [&](Runtime& runtime) { return create_event(runtime, event, true); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags",
              [&](Runtime& runtime) { return create_event(runtime, event, (flags & cudaEventDisableTiming) == 0); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return release_call("cudaEventDestroy", [&](Runtime& runtime) {
    if (!event) return cudaErrorInvalidResourceHandle;
    --runtime.live.events;
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&](Runtime& runtime) {
    stream = runtime.resolve(stream);
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    event->ticket = nullptr;
    if (stream->capture) return stream->capture->is_valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
    event->ticket = std::make_shared<Ticket>(Ticket{.stream = stream});
    return runtime.enqueue(stream, cudaGraphNodeTypeEventRecord, {.signals = event->ticket});
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", [&](Runtime& runtime) {
    stream = runtime.resolve(stream);
    if (event->capture) return join_capture(stream, event);
    if (stream->capture) {
      stream->capture->is_valid = false;
      return cudaErrorStreamCaptureIsolation;
    }
    if (!event->ticket) return cudaSuccess;
    return runtime.enqueue(stream, cudaGraphNodeTypeWaitEvent, {.waits_for = event->ticket});
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&](Runtime& runtime) {
    if (event->capture) return cudaErrorCapturedEvent;
    if (const cudaError_t error = runtime.forbid_in_captures(); error != cudaSuccess) return error;
    return !event->ticket || event->ticket->is_done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", [&](Runtime& runtime) {
    if (event->capture) return cudaErrorCapturedEvent;
    if (event->ticket && !event->ticket->is_done) runtime.drain(event->ticket->stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* elapsed_ms, cudaEvent_t begin, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&](Runtime&) {
    if (!begin->is_timed || !end->is_timed || !begin->ticket || !end->ticket) return cudaErrorInvalidResourceHandle;
    if (!begin->ticket->is_done || !end->ticket->is_done) return cudaErrorNotReady;
    *elapsed_ms = static_cast<float>((end->ticket->time_us - begin->ticket->time_us) / 1e3);
    return cudaSuccess;
  });
}

}  // extern "C"
