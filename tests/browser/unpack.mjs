// Unpacks the Chromium of node_modules, and the libraries and fonts that a bare machine lacks, into $TMPDIR.
import { writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import chromium from "@sparticuz/chromium";

await chromium.executablePath();
const fonts = join(tmpdir(), "fonts");
writeFileSync(
  join(fonts, "fonts.conf"),
  `<fontconfig><dir>/usr/share/fonts</dir><dir>${fonts}</dir><cachedir>${join(fonts, "cache")}</cachedir></fontconfig>\n`,
);
