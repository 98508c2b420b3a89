"""A process that calls an API and prints the number of answers.

Usage: `python -m tests.integration.api_caller REDIS_URL PROFILE CALLS`.
"""

import asyncio
import sys

from config.profiles import Profile, Profiles
from tasks.providers.call import ApiCall
from workers.providers.api_calls import ApiCalls


async def main(redis_url: str, profile: Profile, calls: int) -> int:
    async with ApiCalls(Profiles(profile), redis_url, {}) as ask:
        asked = (ApiCall(profile.name, ({"role": "user", "content": str(number)},)) for number in range(calls))
        return len(await asyncio.gather(*map(ask, asked)))


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], Profile.model_validate_json(sys.argv[2]), int(sys.argv[3]))))
