"""How the Javas of the tests start: quickly, with classes mapped from an archive."""

import sys
from pathlib import Path
from typing import Final

CLASS_ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off"
"""Most Sparks of the tests live for seconds, which a thorough compiler would take for itself."""
PLANS: Final = (
    "-Dspark.sql.adaptive.enabled=false"
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)
"""Tests have few rows: generating and compiling Java for a plan takes longer than running it."""
FROM_ARCHIVE: Final = f"{OPTIONS} -XX:SharedArchiveFile={CLASS_ARCHIVE}"
FOR_SPARK: Final = f"{FROM_ARCHIVE} {PLANS}"
"""Set `HEADWATER_TEST_SPARK=default` to have Spark plan as it does for users."""
