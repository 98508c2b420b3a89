"""`python -m web.healthcheck`: exit 0 when the API of this host answers. For containers without curl."""

import sys
import urllib.request

from config.settings import SettingsError, load_settings


def main() -> int:
    try:
        settings = load_settings()
        host = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host
        with urllib.request.urlopen(f"http://{host}:{settings.port}/health", timeout=4) as reply:
            return 0 if reply.read() == b"ok" else 1
    except (SettingsError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
