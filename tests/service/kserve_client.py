"""Ask a server with KServe's own client; run by a Python that has it."""

import asyncio
import sys


async def main(url: str) -> None:
    import numpy as np
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, "second")
    numbers = InferInput("a", [2], "FP64")
    numbers.set_data_from_numpy(np.array([4.0, -4.0]), binary_data=False)
    towns = InferInput("town", [2], "BYTES")
    towns.set_data_from_numpy(np.array(["York", "York"], object), binary_data=False)
    for name in ("second", "model"):
        request = InferRequest(
            model_name=name, request_id="k-1", infer_inputs=[numbers, towns]
        )
        found = await client.infer(url, request, model_name=name)
        assert found.id == "k-1"
        assert list(found.outputs[0].data) == ["yes", "no"], found.outputs


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
